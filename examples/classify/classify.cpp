// Recognises a handwritten digit, then quantises the model to 8 bits and recognises the digit again.
//   c++ -std=c++20 classify.cpp -o classify $(python -m treadle --cflags --libs) && ./classify ../digits/digits.onnx quantised.onnx
#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <treadle/treadle.hpp>

namespace {

// The picture of a zero, 8 x 8 pixels from 0 to 16: the first of scikit-learn's digits.
constexpr int kPixels[] = {0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0, 0, 3, 15, 2, 0,  11, 8, 0, 0, 4, 12, 0,  0,  8, 8, 0,
                           0, 5, 8, 0,  0, 9, 8, 0, 0, 4, 11, 0,  1,  12, 7, 0, 0, 2, 14, 5, 10, 12, 0, 0, 0, 0, 6,  13, 10, 0, 0, 0};

struct Guess {
  long digit;
  float score;
};

Guess classify(const treadle::Session& session, const treadle::Tensor& image) {
  const treadle::Tensor scores = session.run({{"image", image}})[0].tensor();
  const float* first = scores.data<float>();
  const float* best = std::max_element(first, first + scores.num_elements());
  return {best - first, *best};
}

void run(const char* path, const char* small_path) {
  treadle::Tensor image(treadle::DType::float32, {1, 1, 8, 8});
  std::transform(std::begin(kPixels), std::end(kPixels), image.data<float>(), [](int pixel) { return static_cast<float>(pixel) / 16; });

  const treadle::Model model = treadle::Model::load(path);
  const treadle::Session session(model);
  const Guess guess = classify(session, image);
  std::printf("digit %ld, score %.4f, arena %zu bytes\n", guess.digit, guess.score, session.memory().arena_bytes);

  const auto samples = [&image, left = 1](std::map<std::string, treadle::Datum>& feeds) mutable {
    feeds = {{"image", image}};
    return left-- > 0;
  };
  treadle::QuantizeOptions options;
  options.mode = treadle::QuantizeMode::qdq;
  const treadle::QuantizeResult quantized = treadle::quantize(model, options, samples);
  quantized.model.save(small_path);
  const Guess again = classify(treadle::Session(small_path), image);
  std::printf("in 8 bits: digit %ld, score %.4f\n", again.digit, again.score);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s MODEL QUANTISED_MODEL\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
