//! The table of providers, one row each. A new provider is a crate, a cargo feature and a row.

/// Generates [`ROWS`] from the rows, the enum `Chosen`, the enums of its types, and the macros with which each call
/// selects the provider. `$d` is a dollar sign, for those macros.
macro_rules! providers {
    (($d:tt) $($(#[cfg(feature = $feature:literal)])? $name:ident($provider:ty) = $text:literal, $what:literal;)*) => {
        /// Names of the providers, and whether this build has them.
        pub(super) const ROWS: &[Row] = &[$(Row { name: $text, built: true $(&& cfg!(feature = $feature))? }),*];

        /// The values of TRANSOM_FABRIC.
        pub(super) const EXPECTED: &str = concat!("`auto`", $(", `", $text, "` (", $what $(, "; the cargo feature `", $feature, "`")?, ")"),*);

        mod enums {
            use transom_windows::Fabric;

            /// The provider that TRANSOM_FABRIC chose.
            #[derive(Clone)]
            #[non_exhaustive]
            pub enum Chosen { $($(#[cfg(feature = $feature)])? #[doc = $what] $name($provider),)* }

            /// Memory of this rank.
            #[non_exhaustive]
            pub enum Region { $($(#[cfg(feature = $feature)])? #[doc = $what] $name(<$provider as Fabric>::Region),)* }

            /// Access to memory of a rank.
            #[non_exhaustive]
            pub enum Remote { $($(#[cfg(feature = $feature)])? #[doc = $what] $name(<$provider as Fabric>::Remote),)* }

            /// An atomic in flight.
            #[non_exhaustive]
            pub enum Pending { $($(#[cfg(feature = $feature)])? #[doc = $what] $name(<$provider as Fabric>::Pending),)* }

            /// A read or write in flight.
            #[non_exhaustive]
            pub enum Transfer { $($(#[cfg(feature = $feature)])? #[doc = $what] $name(<$provider as Fabric>::Transfer),)* }
        }
        pub use enums::{Chosen, Pending, Region, Remote, Transfer};

        /// Calls the provider that the value holds. `made` wraps a result in the variant of that provider.
        macro_rules! each {
            ($d self:expr, $d fabric:ident $d(, $d made:ident: $d type:ident)? => $d call:expr) => {
                match $d self {
                    $($(#[cfg(feature = $feature)])? Chosen::$name($d fabric) => {
                        $d(let $d made = $d type::$name;)?
                        $d call
                    })*
                }
            };
        }

        /// Calls a provider with an object that it made; evaluates `otherwise` if another provider made the object.
        macro_rules! both {
            ($d self:expr, $d before:expr, $d kind:ident, $d fabric:ident, $d at:ident $d(, $d made:ident: $d type:ident)?
             => $d call:expr, else $d otherwise:expr) => {
                match ($d self, $d before) {
                    $($(#[cfg(feature = $feature)])? (Chosen::$name($d fabric), $d kind::$name($d at)) => {
                        $d(let $d made = $d type::$name;)?
                        $d call
                    })*
                    #[allow(unreachable_patterns, reason = "a build may have one row")]
                    _ => $d otherwise,
                }
            };
            ($d($d tokens:tt)*) => { both!($d($d tokens)*, else Err(mixed())) };
        }

        /// Calls a provider with an iterator of objects that it made, unwrapped to its own type.
        macro_rules! all {
            ($d self:expr, $d before:expr, $d kind:ident, $d fabric:ident, $d at:ident => $d call:expr) => {
                match $d self {
                    $($(#[cfg(feature = $feature)])? Chosen::$name($d fabric) => {
                        let $d at = $d before.filter_map(|before| match before {
                            $d kind::$name(before) => Some(before),
                            #[allow(unreachable_patterns, reason = "a build may have one row")]
                            _ => None,
                        });
                        $d call
                    })*
                }
            };
        }

        /// Returns the result of `then` for the first provider, of type `kind`, for which `fits` holds, wrapped as a
        /// `Chosen`.
        macro_rules! first {
            ($d kind:ident, $d name:ident if $d fits:expr => $d then:expr) => {
                $($(#[cfg(feature = $feature)])? {
                    type $d kind = $provider;
                    let $d name = $text;
                    if $d fits {
                        return $d then.map(Chosen::$name);
                    }
                })*
            };
        }

        /// Evaluates `item` for each provider of this build, of type `kind`, into a list.
        macro_rules! list {
            ($d kind:ident, $d name:ident => $d item:expr) => {
                [$($(#[cfg(feature = $feature)])? {
                    type $d kind = $provider;
                    let $d name = $text;
                    $d item
                }),*]
            };
        }
    };
}

/// A provider that TRANSOM_FABRIC may name.
pub(super) struct Row {
    pub name: &'static str,
    /// True if this build has the provider.
    pub built: bool,
}

// `auto` is the first row among ranks of one host, and the first network that all ranks can use among ranks of several.
providers! { ($)
    Loopback(transom_shm_loopback::Loopback) = "shm", "one machine";
    #[cfg(feature = "verbs")]
    Verbs(transom_network::Far<transom_verbs::Verbs>) = "verbs", "InfiniBand, RoCE";
    Tcp(transom_network::Far<transom_tcp::Tcp>) = "tcp", "any network";
    #[cfg(feature = "delayed")]
    Delayed(transom_windows::Delayed<transom_shm_loopback::Loopback>) = "delayed", "late and unordered, to test synchronisation";
}
