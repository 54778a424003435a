"""Padding with fewer shapes, and so fewer compiles. Libraries are recognised by attributes, never imported."""

from tpu_magics.padding.sampler import BucketBatches, PadTo, bucket_for, buckets

__all__ = ["BucketBatches", "PadTo", "bucket_for", "buckets"]
