//! The network interfaces of this machine.

use std::net::IpAddr;

/// An address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, as `ip address` prints it.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
}

/// The addresses of this machine, loopback addresses last. Link-local addresses are left out, because they need the name
/// of an interface of the host that connects.
///
/// # Examples
/// ```
/// let found = transom_launch::interfaces();
/// assert!(!found.is_empty());
/// ```
pub fn interfaces() -> Vec<Interface> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let found = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))?;
        Some(Interface { name: interface.interface_name, address })
    });
    let usable = |found: &Interface| match found.address {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    let mut found: Vec<_> = found.filter(usable).collect();
    found.sort_by_key(|found| (found.address.is_loopback(), found.address.is_ipv6()));
    found.dedup();
    found
}
