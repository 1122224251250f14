//! The cores that the ranks of a job can use together. A launcher may bind each rank to some of them.

/// The number of cores that this process may use.
pub(crate) fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// This process's contribution to [`of_all`]: the number of cores that it may use, and its affinity mask, one bit per
/// core.
pub(crate) fn mine() -> Vec<u8> {
    let mut which = Vec::new();
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        for core in (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)) {
            which.resize(which.len().max(core / 8 + 1), 0);
            which[core / 8] |= 1 << (core % 8);
        }
    }
    [&(usable() as u64).to_le_bytes()[..], &which].concat()
}

/// The number of cores of all ranks together, from the contribution of each.
pub(crate) fn of_all(ranks: &[Vec<u8>]) -> usize {
    let mut which = Vec::new();
    let (mut least, mut quota) = (1, usize::MAX);
    for said in ranks {
        let Some((usable, bits)) = said.split_first_chunk() else { continue };
        let usable = u64::from_le_bytes(*usable) as usize;
        if usable < bits.iter().map(|byte| byte.count_ones() as usize).sum() {
            // The affinity mask has more cores than the process may use: a quota, which its container shares.
            quota = quota.min(usable);
        }
        least = least.max(usable);
        which.resize(which.len().max(bits.len()), 0);
        which.iter_mut().zip(bits).for_each(|(all, bits)| *all |= bits);
    }
    least.max(which.iter().map(|byte: &u8| byte.count_ones() as usize).sum()).min(quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(usable: u64, bits: &[u8]) -> Vec<u8> {
        [&usable.to_le_bytes()[..], bits].concat()
    }

    #[test]
    fn bound_ranks_count_the_union_of_their_cores() {
        assert_eq!(of_all(&[says(1, &[0b01]), says(1, &[0b10])]), 2);
        assert_eq!(of_all(&[says(1, &[0b01]), says(1, &[0b01])]), 1);
        assert_eq!(of_all(&[says(2, &[0, 0b11]), says(1, &[1])]), 3);
        assert_eq!(of_all(&[says(2, &[0b1111]), says(2, &[0b1111])]), 2, "a quota");
        assert_eq!(of_all(&[says(4, &[]), Vec::new()]), 4, "without affinity masks");
        assert_eq!(of_all(&[mine(), mine()]), usable());
    }
}
