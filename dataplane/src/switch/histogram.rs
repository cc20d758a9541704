//! Histograms with bins that double: bin 0 is zero, bin i holds values from 2^(i-1) up to, not with, 2^i.

/// Counts by bin; takes no memory until something is counted.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    max: u64,
}

impl Histogram {
    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        let bin = (u64::BITS - value.leading_zeros()) as usize;
        if self.counts.len() <= bin {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += 1;
        self.max = self.max.max(value);
    }

    /// Counts by bin, as far as there are any.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The largest value.
    pub fn max(&self) -> u64 {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_double() {
        let mut h = Histogram::default();
        for value in [0, 1, 2, 3, 4, 7, 8, 1023, 1024] {
            h.record(value);
        }
        assert_eq!(h.counts(), [1, 1, 2, 2, 1, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(h.max(), 1024);
    }
}
