//! Former names of variables. A variable that is set under its former name is refused, so that the setting is not lost.

/// Former and present names.
const RENAMED: [(&str, &str); 6] = [
    ("TRANSOM_TAG", "TRANSOM_OUTPUT_PREFIX"),
    ("TRANSOM_SPIN", "TRANSOM_SPIN_US"),
    ("TRANSOM_HYBRID", "TRANSOM_INTRANODE"),
    ("TRANSOM_VERBS_REGISTER", "TRANSOM_VERBS_ZCOPY_MIN"),
    ("TRANSOM_VERBS_KEEP", "TRANSOM_VERBS_REGCACHE_BYTES"),
    ("TRANSOM_VERBS_NOTIFY", "TRANSOM_VERBS_WORD_WRITE"),
];

/// The former name of the variable `name`, with its value, if the environment has it.
pub fn set_by_former_name(name: &str) -> Option<(&'static str, String)> {
    let (former, _) = RENAMED.into_iter().find(|(_, present)| *present == name)?;
    std::env::var_os(former).map(|value| (former, value.to_string_lossy().into_owned()))
}
