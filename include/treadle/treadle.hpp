// The whole public C++ API.
#pragma once

#include "treadle/allocator.h"
#include "treadle/data.h"
#include "treadle/datum.h"
#include "treadle/dlpack.h"
#include "treadle/dtype.h"
#include "treadle/engine.h"
#include "treadle/error.h"
#include "treadle/hooks.h"
#include "treadle/model.h"
#include "treadle/profile.h"
#include "treadle/session.h"
#include "treadle/shape.h"
#include "treadle/sharing.h"
#include "treadle/tensor.h"
#include "treadle/train.h"
