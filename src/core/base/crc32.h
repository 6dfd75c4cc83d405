// CRC-32, with the polynomial of a file format. It detects damage, not manipulation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace treadle {

/// Polynomials in reflected bit order.
enum class CrcPolynomial : uint32_t {
  ieee = 0xEDB88320U,        ///< used by zip, gzip and PNG
  castagnoli = 0x82F63B78U,  ///< CRC-32C, used by TFRecord files
};

namespace detail {

// table[k][b] is the CRC of the byte b followed by k zeros. With these tables, one step of the loop processes eight bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> crc32_tables(uint32_t polynomial) {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1U ^ ((crc & 1U) != 0 ? polynomial : 0U);
    tables[0][i] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (uint32_t i = 0; i < 256; ++i) tables[k][i] = tables[k - 1][i] >> 8U ^ tables[0][tables[k - 1][i] & 0xFFU];
  return tables;
}

}  // namespace detail

template <CrcPolynomial kPolynomial>
uint32_t crc32(std::span<const std::byte> bytes) {
  static constexpr auto kTables = detail::crc32_tables(static_cast<uint32_t>(kPolynomial));
  auto at = [&](size_t i) { return static_cast<uint32_t>(bytes[i]); };
  uint32_t crc = ~0U;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    crc ^= at(i) | at(i + 1) << 8U | at(i + 2) << 16U | at(i + 3) << 24U;
    crc = kTables[7][crc & 0xFFU] ^ kTables[6][crc >> 8U & 0xFFU] ^ kTables[5][crc >> 16U & 0xFFU] ^ kTables[4][crc >> 24U] ^
          kTables[3][at(i + 4)] ^ kTables[2][at(i + 5)] ^ kTables[1][at(i + 6)] ^ kTables[0][at(i + 7)];
  }
  for (; i < bytes.size(); ++i) crc = crc >> 8U ^ kTables[0][(crc ^ at(i)) & 0xFFU];
  return ~crc;
}

}  // namespace treadle
