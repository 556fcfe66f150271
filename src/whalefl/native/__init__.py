"""Operations in C++ for training on a processor, see `kernels.cpp`; without a compiler torch's own do the same."""
