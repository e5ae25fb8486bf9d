/* The dynamic linker, for images and for the libraries whose routines they call. An image is bound
 * at once, so that a missing symbol is an error here and not in the middle of a superstep. */
#include "parts.h"

#include <dlfcn.h>

void *spmd_library_open(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

void *spmd_library_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}

const char *spmd_library_error(void)
{
    const char *text = dlerror();
    return text ? text : "no error";
}

int spmd_library_close(void *library)
{
    return dlclose(library) ? SPMD_SYSTEM : SPMD_OK;
}
