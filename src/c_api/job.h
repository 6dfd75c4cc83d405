// The job behind its handle.
#pragma once

#include <memory>

#include "treadle/sharing.h"
#include "treadle/treadle.h"

struct treadle_job {
  std::shared_ptr<treadle::Job> job;
};
