/*
 * The address sanitizer, if there is one. SHEAF_EMU_ASAN stands for it, because the files that
 * every switch goes through are built without its checks.
 */
#ifndef SHEAF_EMU_ASAN_INT_H
#define SHEAF_EMU_ASAN_INT_H

#ifdef SHEAF_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { HAS_ASAN = 1 };
#define FORBID(p, bytes)       __asan_poison_memory_region((p), (bytes))
#define ALLOW(p, bytes)        __asan_unpoison_memory_region((p), (bytes))
#define IS_FORBIDDEN(p, bytes) (__asan_region_is_poisoned((void *)(p), (bytes)) != nullptr)
#else
enum { HAS_ASAN = 0 };
#define FORBID(p, bytes)       ((void)(p), (void)(bytes))
#define ALLOW(p, bytes)        ((void)(p), (void)(bytes))
#define IS_FORBIDDEN(p, bytes) ((void)(p), (void)(bytes), false)
#endif

#endif
