/* A supply of the feed of fed.c, for the driver. */
#ifndef SUPPLY_H
#define SUPPLY_H

#include <pthread.h>
#include <stdbool.h>

#include "engine.h"

int64_t supply_check(spmd_job *job, int64_t flags, int64_t (*run)(spmd_job *job));

#endif
