#include "base/base64.h"

#include <openssl/evp.h>
#include <stdlib.h>

char *base64_encode(const void *bytes, size_t length)
{
    if (length > BASE64_BYTES_MAX)
        return NULL;
    char *text = malloc((length + 2) / 3 * 4 + 1);
    if (text)
        EVP_EncodeBlock((unsigned char *)text, bytes, (int)length);
    return text;
}
