"""What is known about a graph before it is traced, and what finds it again in a cache.

In: the real tensors that Dynamo hands over. Out: their layouts, the guard of int64 inputs, the
fingerprints of whoever extends the compiler, the keys of Inductor's graph caches.
"""
