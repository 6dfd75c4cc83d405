// Discrete Fourier transforms of any length.
//
// Lengths with prime factors up to 13 use Stockham's self-sorting passes, one per factor. Other lengths become a convolution whose length
// is a power of two (Bluestein 1970, "A linear filtering approach to the computation of discrete Fourier transform").
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>

namespace treadle::kernels {

/// Computes y[k] = sum over n of x[n] exp(-+ 2 pi i k n / length). The inverse has the plus sign and is not scaled. @tparam T  float or
/// double
template <typename T>
class Fft {
 public:
  using Complex = std::complex<T>;

  /// Plans a transform. @throws Error(invalid_argument) for a length below 1, Error(resource_exhausted) above 2^30
  Fft(int64_t length, bool inverse);

  int64_t length() const { return length_; }
  /// Returns the number of elements that prepare() writes: roots of unity, which any number of transforms may share.
  int64_t table_size() const;
  void prepare(Complex* table, Complex* work) const;
  /// Returns the number of elements of working memory that prepare() and run() need.
  int64_t work_size() const { return bluestein_ ? 2 * padded_ : length_; }
  /// Transforms `line` (length elements) in place.
  void run(const Complex* table, Complex* line, Complex* work) const;

 private:
  static constexpr int kMaxFactors = 32;
  struct Factors {
    int count = 0;
    int radix[kMaxFactors] = {};
  };
  static bool factorize(int64_t n, Factors& factors);
  static void passes(const Factors& factors, int64_t n, const Complex* roots, bool inverse, Complex* line, Complex* work);

  int64_t length_, padded_ = 0;
  bool inverse_, bluestein_;
  Factors factors_;
};

extern template class Fft<float>;
extern template class Fft<double>;

}  // namespace treadle::kernels
