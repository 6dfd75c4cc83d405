// SHA-1 (FIPS 180-4), for checksums of ONNX's external data. It detects damage, not manipulation.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace treadle {

/// Returns the SHA-1 digest of the data as 40 lower-case hexadecimal digits.
std::string sha1(std::span<const std::byte> data);

}  // namespace treadle
