//! Atomics are for elements that are words.

use transom::{Error, Op, Window};

fn main() {}

fn atomics(words: &mut Window<u64>, bytes: &mut Window<[u8; 3]>) -> Result<(), Error> {
    words.lock_shared(0)?.fetch_and_op(0, Op::Sum, 1)?;
    let epoch = bytes.lock_shared(0)?;
    //= `[u8; 3]` has no atomic operations
    //= `fetch_and_op`, `compare_and_swap` and `accumulate` take u8 to u64, i8 to i64, usize, isize, f32 and f64
    #[cfg(wrong)]
    epoch.fetch_and_op(0, Op::Sum, [1, 0, 0])?; //~ E0277
    #[cfg(wrong)]
    epoch.compare_and_swap(0, [0; 3], [1; 3])?; //~ E0277
    epoch.unlock()
}
