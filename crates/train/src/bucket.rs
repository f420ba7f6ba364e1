//! Groups layers into buckets, and splits buckets into chunks.

use gradtide_net::Bytes;

/// Gradients that are aggregated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Layers of the bucket in the order of the backward pass, the highest first.
    pub layers: Vec<u32>,
    /// Size of the bucket, in bytes.
    pub bytes: Bytes,
}

impl Bucket {
    /// Returns the layer that is last in the backward pass and first in the forward pass.
    pub fn first_layer(&self) -> u32 {
        self.layers[self.layers.len() - 1]
    }

    /// Returns the layer nearest to the output side.
    pub fn last_layer(&self) -> u32 {
        self.layers[0]
    }

    /// Returns the number of chunks of at most `chunk` bytes. Without a limit the bucket is one chunk.
    pub fn chunk_count(&self, chunk: Option<Bytes>) -> u64 {
        chunk.map_or(1, |chunk| self.bytes.0.div_ceil(chunk.0).max(1))
    }

    /// Returns the bytes of chunk `index`. All chunks but the last have `chunk` bytes.
    pub fn chunk_bytes(&self, chunk: Option<Bytes>, index: u64) -> Bytes {
        chunk.map_or(self.bytes, |chunk| Bytes((self.bytes.0 - index * chunk.0).min(chunk.0)))
    }
}

/// Groups layers into buckets of at most `cap` bytes.
///
/// The function goes from the output side to the input side, as the backward pass does. A layer that would exceed the
/// cap starts a new bucket, and a layer larger than the cap is a bucket of its own. A layer without parameters is in no
/// bucket, because nothing is sent for it.
///
/// # Source
/// Gao (2020), section 4.3, with the rule of docs/models/training.md. Differs from the author's program, in which an
/// off-by-one error always makes the last layer a bucket of its own.
pub fn fuse(parameter_bytes: &[Bytes], cap: Bytes) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for (layer, &bytes) in parameter_bytes.iter().enumerate().rev().filter(|(_, bytes)| bytes.0 > 0) {
        let layer = layer as u32;
        match buckets.last_mut() {
            Some(bucket) if bucket.bytes.0.saturating_add(bytes.0) <= cap.0 => {
                bucket.layers.push(layer);
                bucket.bytes.0 += bytes.0;
            }
            _ => buckets.push(Bucket { layers: vec![layer], bytes }),
        }
    }
    buckets
}

/// Groups layers into buckets of the given numbers of layers, counted from the input side. Returns the buckets in the
/// order of the backward pass. A layer without parameters is in no bucket, and empty buckets are omitted.
pub fn group(parameter_bytes: &[Bytes], layer_counts: &[u32]) -> Vec<Bucket> {
    let mut first = 0;
    let mut buckets: Vec<Bucket> = layer_counts
        .iter()
        .map(|&count| {
            let members = first..first + count;
            first += count;
            let layers: Vec<u32> = members.rev().filter(|&layer| parameter_bytes[layer as usize].0 > 0).collect();
            let bytes = layers.iter().map(|&layer| parameter_bytes[layer as usize]).sum();
            Bucket { layers, bytes }
        })
        .filter(|bucket| !bucket.layers.is_empty())
        .collect();
    buckets.reverse();
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layers_of(parameter_bytes: &[u64], cap: u64) -> Vec<Vec<u32>> {
        let bytes: Vec<Bytes> = parameter_bytes.iter().copied().map(Bytes).collect();
        fuse(&bytes, Bytes(cap)).into_iter().map(|bucket| bucket.layers).collect()
    }

    #[test]
    fn a_layer_that_would_pass_the_cap_starts_a_new_bucket() {
        assert_eq!(layers_of(&[1, 2, 3, 4], 7), [vec![3, 2], vec![1, 0]]);
    }

    #[test]
    fn a_layer_larger_than_the_cap_is_alone() {
        assert_eq!(layers_of(&[1, 9, 1], 4), [vec![2], vec![1], vec![0]]);
    }

    #[test]
    fn a_cap_of_zero_leaves_every_layer_alone_and_layers_without_bytes_out() {
        assert_eq!(layers_of(&[1, 0, 1], 0), [vec![2], vec![0]]);
    }

    #[test]
    fn own_buckets_are_counted_from_the_input_side() {
        let buckets = group(&[1, 2, 0, 4, 0].map(Bytes), &[2, 2, 1]);
        let layers: Vec<_> = buckets.iter().map(|bucket| (bucket.layers.clone(), bucket.bytes.0)).collect();
        assert_eq!(layers, [(vec![3], 4), (vec![1, 0], 3)]);
    }

    proptest! {
        #[test]
        fn fusing_and_chunking_conserve_bytes(
            sizes in prop::collection::vec(0_u64..1000, 0..60), cap in 0_u64..3000, chunk in 1_u64..500
        ) {
            let bytes: Vec<Bytes> = sizes.iter().copied().map(Bytes).collect();
            let buckets = fuse(&bytes, Bytes(cap));
            prop_assert_eq!(buckets.iter().map(|bucket| bucket.bytes.0).sum::<u64>(), sizes.iter().sum::<u64>());
            for bucket in &buckets {
                prop_assert!(bucket.layers.len() == 1 || bucket.bytes.0 <= cap);
                let chunks: Vec<u64> = (0..bucket.chunk_count(Some(Bytes(chunk))))
                    .map(|index| bucket.chunk_bytes(Some(Bytes(chunk)), index).0)
                    .collect();
                prop_assert_eq!(chunks.iter().sum::<u64>(), bucket.bytes.0);
                prop_assert!(chunks.iter().all(|&part| 0 < part && part <= chunk));
            }
        }
    }
}
