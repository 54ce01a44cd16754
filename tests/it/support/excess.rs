//! How far what was let through is beyond a limit, as callers see it.

/// How many more than `burst + rate * T` were certainly let through, in whichever time T shows most of it: from the moment
/// at which a request was sent to one at which a request was answered. Each request is given by both, in seconds. Below 0:
/// so many more would have been within the limit.
pub fn excess(rate: f64, burst: f64, let_through: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut begins, mut ends): (Vec<_>, Vec<_>) = let_through.unzip();
    begins.sort_unstable_by(f64::total_cmp);
    ends.sort_unstable_by(f64::total_cmp);
    let (mut excess, mut most, mut begun) = (f64::NEG_INFINITY, f64::NEG_INFINITY, 0);
    for (n, end) in ends.iter().enumerate() {
        while begins.get(begun).is_some_and(|begin| begin <= end) {
            most = most.max(rate * begins[begun] - begun as f64);
            begun += 1;
        }
        excess = excess.max((n + 1) as f64 - rate * end + most - burst);
    }
    excess
}
