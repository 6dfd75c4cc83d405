// Reads ONNX's test-case data: model.onnx beside test_data_set_K/{input,output}_J.pb.
#pragma once

#include <filesystem>
#include <string>

#include "treadle/datum.h"

namespace treadle::testing {

/// Says what a .pb file of a test case contains, which depends on the type of the graph's input or output.
enum class ProtoKind { tensor, sequence, optional };
Datum read_pb(const std::filesystem::path& path, ProtoKind kind);

/// Returns an empty text if |a - b| <= atol + rtol * |b| elementwise (NaN equals NaN; strings exactly), otherwise the first difference.
std::string compare(const Datum& actual, const Datum& expected, double rtol, double atol);

}  // namespace treadle::testing
