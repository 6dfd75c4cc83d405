// A recording as Perfetto's protobuf (.pftrace): track events of https://perfetto.dev/docs/reference/trace-packet-proto.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// A track for each row, a slice for each range, with names and arguments stored once per row; a track for each counter.
std::string to_perfetto_trace(const TraceView& view);

}  // namespace treadle::profile
