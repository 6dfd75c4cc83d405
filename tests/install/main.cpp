// Uses only the installed C++ headers and library, and nothing of the source tree.
#include <cstdio>
#include <cstring>
#include <treadle/treadle.hpp>

int main() {
  try {
    treadle::Session session("there-is-no-such-file.onnx");
  } catch (const treadle::Error& error) {
    if (error.code() != treadle::ErrorCode::not_found) return 1;
    std::printf("treadle %s: %s\n", std::string(treadle::version()).c_str(), error.what());
    return 0;
  }
  return 1;
}
