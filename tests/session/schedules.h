// Lists the schedules of a session's or trainer's program, for tests of results that must not depend on the schedule.
#pragma once

#include "treadle/session.h"

namespace treadle::testing {

struct Schedule {
  const char* name;
  void (*choose)(SessionOptions&);
};

inline constexpr Schedule kInOrder{"in_order", [](SessionOptions& o) { o.intra_op_num_threads = 1; }};
inline constexpr Schedule kByReadiness{"by_readiness", [](SessionOptions& o) {
                                         o.intra_op_num_threads = o.inter_op_num_threads = 2;
                                         o.execution_mode = ExecutionMode::parallel;
                                       }};
inline constexpr Schedule kOnADevice{"on_a_device", [](SessionOptions& o) { o.device = "sim"; }};
inline constexpr Schedule kOnStreams{"on_streams", [](SessionOptions& o) { o.device = "sim", o.compute_streams = 2; }};

}  // namespace treadle::testing
