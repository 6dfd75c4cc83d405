// Writes a recording as Perfetto's protobuf (.pftrace): track events of https://perfetto.dev/docs/reference/trace-packet-proto.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Writes one track per row, with a slice for each range, and one track per counter. Names and arguments that several slices of a row have
/// in common are stored once.
std::string to_perfetto_trace(const TraceView& view);

}  // namespace treadle::profile
