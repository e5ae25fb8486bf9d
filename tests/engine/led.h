#ifndef LED_H
#define LED_H

#include "engine.h"
#include "spmd_image.h"

/* image: the one that doubles its input, or writes -1 where none is given. */
int64_t check_led(const spmd_image *image);

#endif
