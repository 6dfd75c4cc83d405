// The struct behind the handle treadle_job.
#pragma once

#include <memory>

#include "c_api/arguments.h"
#include "treadle/sharing.h"
#include "treadle/treadle.h"

struct treadle_job : treadle::c_api::Handle<treadle_job> {
  std::shared_ptr<treadle::Job> job;
};
