// SHA-1 (FIPS 180-4), for the checksums that ONNX keeps of external data: finds damage, not malice.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace treadle {

/// 40 lower-case hexadecimal digits.
std::string sha1(std::span<const std::byte> data);

}  // namespace treadle
