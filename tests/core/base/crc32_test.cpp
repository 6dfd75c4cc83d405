#include "core/base/crc32.h"

#include <gtest/gtest.h>

#include <string>

namespace treadle {
namespace {

template <CrcPolynomial kPolynomial>
uint32_t crc_of(const std::string& text) {
  return crc32<kPolynomial>(std::as_bytes(std::span(text.data(), text.size())));
}

// Expected values: check values of the CRC catalogue for CRC-32/ISO-HDLC and CRC-32/ISCSI, examples of RFC 3720, and results of Python's
// zlib for lengths around a step of the loop.
TEST(Crc32, GivesThePublishedValues) {
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>("123456789"), 0xCBF43926U);
  EXPECT_EQ(crc_of<CrcPolynomial::castagnoli>("123456789"), 0xE3069283U);
  EXPECT_EQ(crc_of<CrcPolynomial::castagnoli>(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc_of<CrcPolynomial::castagnoli>(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>(""), 0U);
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>(std::string(1, 'x')), 0x8CDC1683U);
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>(std::string(7, 'x')), 0x2169DEFBU);
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>(std::string(8, 'x')), 0xA69254C9U);
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>(std::string(9, 'x')), 0x6EC2FEC3U);
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>(std::string(15, 'x')), 0x2C357CEBU);
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>(std::string(16, 'x')), 0xBB28180FU);
  EXPECT_EQ(crc_of<CrcPolynomial::ieee>(std::string(17, 'x')), 0x1CD8230AU);
}

}  // namespace
}  // namespace treadle
