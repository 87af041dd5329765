#include "precision/collect.h"
