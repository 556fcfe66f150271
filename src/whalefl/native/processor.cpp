// What kernels that keep sums in registers ask of the processor.

// Whether vectors of LANES numbers are what it computes with; narrower ones leave too few registers.
extern "C" int has_wide_vectors() {
#ifdef __AVX512F__
    return 1;
#else
    return 0;
#endif
}
