#include <shardrun/strategy.h>

#include "headers.c"
