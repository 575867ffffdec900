/*
 * How a twin gets a function of its own for each form and size of a tile: everything is inlined
 * with constants. Under AddressSanitizer there is one function for all of them instead, the
 * same source with the sizes as variables: inlined, they take minutes to compile there.
 */
#ifndef SHEAF_INLINE_INT_H
#define SHEAF_INLINE_INT_H

#ifdef __SANITIZE_ADDRESS__
#define ALWAYS_INLINE __attribute__((noinline, noclone, unused))
#define UNROLL(n)
#else
#define ALWAYS_INLINE     inline __attribute__((always_inline))
#define UNROLL_TEXT(text) _Pragma(#text)
#define UNROLL(n)         UNROLL_TEXT(GCC unroll n)
#endif

#endif
