/* Tables of the images in images.c, near.c and mixed.c, declared, and as rows of {name, image}. */
#ifndef IMAGES_H
#define IMAGES_H

#include "spmd_image.h"

#define DECLARE(name) extern const spmd_image name##_image;
#define ROW(name) {#name, &name##_image},

/* Those that only exchange. */
#define EXCHANGING(use)                                                                            \
    use(mixed) use(ring) use(edge) use(route) use(reduce) use(axes) use(gather) use(swap)          \
        use(scatter) use(scan) use(near) use(halo)
EXCHANGING(DECLARE)

#endif
