"""What is known about a graph before it is traced: guards, input layouts, cache keys.

In: the real tensors that Dynamo hands over. Out: their layouts, the guard of int64 inputs, the
fingerprints of users' passes, the keys of Inductor's graph caches.
"""
