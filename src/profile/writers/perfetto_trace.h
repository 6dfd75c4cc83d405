// Writes a recording as Perfetto's protobuf (.pftrace): track events of https://perfetto.dev/docs/reference/trace-packet-proto.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Writes a track per row with a slice per range, and a track per counter. Names and arguments are stored once per row.
std::string to_perfetto_trace(const TraceView& view);

}  // namespace treadle::profile
