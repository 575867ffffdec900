/* A kernel in a file of its own whose arguments have the name, and not the size, of those of
 * another one in test_emulation.cpp. */
#ifndef SHEAF_TESTS_NAMESAKE_RIG_H
#define SHEAF_TESTS_NAMESAKE_RIG_H

/* out: of the device; becomes the sum of 1 to 16. */
void namesake_launch(float *out);

#endif
