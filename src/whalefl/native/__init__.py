"""Operations in C++ for training on a processor; without a compiler torch's own do the same.

Each module names the C++ file of its kernels. `compiler` makes one library of all of them, and `images` is what layers
see of those that work on images.
"""
