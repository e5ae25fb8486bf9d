/* Polynomials: neighbours first, then pairs of them, so that few wait for another (Estrin). */
#ifndef SPMD_SERIES_H
#define SPMD_SERIES_H

#include <math.h>
#include <stdint.h>

#include "spmd_select.h"

/* a + b x + c x^2 + d x^3 */
#define SPMD_FOUR(x, square, a, b, c, d) (((a) + (x) * (b)) + (square) * ((c) + (x) * (d)))

#endif
