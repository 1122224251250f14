//! The NAS kernels find the values that NPB publishes for class S, on each number of ranks and by each form.

use crate::results::{refuses, succeeds};

const VERIFIED: &[&str] = &["Mop/s", "VERIFICATION SUCCESSFUL"];

#[track_caller]
fn verifies(kernel: &str, ranks: &[usize]) {
    for ranks in ranks {
        let out = succeeds("nas", &format!("{kernel} --class S --ranks {ranks}"), VERIFIED);
        assert!(out.contains(&format!("ranks {ranks}:")), "{out}");
    }
}

#[test]
fn ep_on_any_number_of_ranks_is_verified() {
    verifies("ep", &[1, 2, 3, 4]);
}

#[test]
fn is_by_each_form_is_verified() {
    verifies("is", &[1, 2, 4, 16]);
    verifies("is --by one-sided", &[1, 2, 4, 16]);
    verifies("is --by pipes", &[1, 2, 4, 16]);
}

#[test]
fn cg_on_square_and_oblong_grids_is_verified() {
    verifies("cg", &[1, 2, 4, 8]);
}

#[test]
fn mg_with_whole_coarse_grids_is_verified() {
    verifies("mg", &[1, 2, 4, 8]);
}

#[test]
fn ft_by_each_form_is_verified() {
    verifies("ft", &[1, 2, 4]);
    verifies("ft --by one-sided", &[1, 2, 4]);
    verifies("ft --by pipes", &[1, 2, 4]);
}

#[test]
fn nas_on_unsuitable_ranks_is_refused() {
    refuses("nas", "cg --ranks 3", &["cg class S on 3 ranks", "a power of two from 1 to 1024", "--ranks 4"]);
    refuses("nas", "mg --ranks 2048", &["mg class S on 2048 ranks", "a power of two from 1 to 1024"]);
    refuses("nas", "is --ranks 256", &["is class S on 256 ranks", "a power of two from 1 to 128"]);
    refuses("nas", "ft --class W --ranks 64", &["ft class W on 64 ranks", "a power of two from 1 to 32"]);
}

#[test]
fn nas_with_unknown_words_is_refused() {
    refuses("nas", "", &["<KERNEL>", "--help"]);
    refuses("nas", "bt", &["ep", "is", "cg", "mg", "ft"]);
    refuses("nas", "cg --class Z", &["S", "W", "A"]);
    refuses("nas", "mg --by pipes", &["mg has no form by pipes", "--by messages"]);
    refuses("nas", "cg --by one-sided", &["cg has no form by one-sided", "--by messages"]);
    succeeds("nas", "--help", &["Examples:", "transom run"]);
}
