// Writes a recording as Perfetto's protobuf (.pftrace): track events of https://perfetto.dev/docs/reference/trace-packet-proto.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Writes a track per row with a slice per range, and a track per counter. In a row, slices with the same name or the same arguments share
/// one copy of them.
std::string to_perfetto_trace(const TraceView& view);

}  // namespace treadle::profile
