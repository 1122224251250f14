//! The network interfaces of this machine.

use std::net::IpAddr;

/// An address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, as `ip address` prints it.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
    /// Number of leading bits of the address that name its network, as after the `/` in `ip address`.
    pub prefix: u8,
}

/// The addresses of this machine, loopback addresses last. Link-local addresses are left out, because they need the name
/// of an interface of the host that connects.
///
/// # Examples
/// ```
/// let found = transom_launch::interfaces();
/// assert!(!found.is_empty());
/// let loopback = found.iter().find(|found| found.address.to_string() == "127.0.0.1");
/// assert!(loopback.is_none_or(|found| found.prefix == 8));
/// ```
pub fn interfaces() -> Vec<Interface> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let found = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))?;
        let mask = interface.netmask;
        let v4 = mask.as_ref().and_then(|mask| Some(mask.as_sockaddr_in()?.ip().to_bits().count_ones()));
        let v6 = mask.as_ref().and_then(|mask| Some(mask.as_sockaddr_in6()?.ip().to_bits().count_ones()));
        // An interface without a mask has a network of its own.
        let own = if address.is_ipv4() { 32 } else { 128 };
        Some(Interface { name: interface.interface_name, address, prefix: v4.or(v6).unwrap_or(own) as u8 })
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
