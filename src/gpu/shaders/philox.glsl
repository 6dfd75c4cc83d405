// Philox 4x32 with ten rounds; see kernels/random/philox.h.
// @param stream, key  low word first
uvec4 random_bits(uint index, uvec2 stream, uvec2 key) {
  uvec4 counter = uvec4(index, 0, stream);
  for (int round = 0; round < 10; ++round) {
    uint a_high, a_low, b_high, b_low;
    umulExtended(0xD2511F53u, counter.x, a_high, a_low);
    umulExtended(0xCD9E8D57u, counter.z, b_high, b_low);
    counter = uvec4(b_high ^ counter.y ^ key.x, b_low, a_high ^ counter.w ^ key.y, a_low);
    key += uvec2(0x9E3779B9u, 0xBB67AE85u);
  }
  return counter;
}
