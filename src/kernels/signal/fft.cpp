#include "kernels/signal/fft.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "treadle/error.h"

namespace treadle::kernels {
namespace {

constexpr int kLargestPrime = 13;
constexpr int64_t kMaxLength = int64_t{1} << 30;

/// Returns exp(-2 pi i k / n); exact for 1, -1, i and -i.
template <typename T>
std::complex<T> root_of_unity(int64_t k, int64_t n) {
  double angle = -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
  if (k * 4 % n == 0) {
    constexpr int kCos[] = {1, 0, -1, 0}, kSin[] = {0, -1, 0, 1};
    return {static_cast<T>(kCos[k * 4 / n % 4]), static_cast<T>(kSin[k * 4 / n % 4])};
  }
  return {static_cast<T>(std::cos(angle)), static_cast<T>(std::sin(angle))};
}

// Multiplies two numbers without the checks for NaN and infinity of std::complex's product, which cost more than the product.
template <typename T>
std::complex<T> times(std::complex<T> a, std::complex<T> b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

/// Returns -i a, or i a for the inverse transform.
template <typename T>
std::complex<T> quarter_turn(std::complex<T> a, bool inverse) {
  return inverse ? std::complex<T>(-a.imag(), a.real()) : std::complex<T>(a.imag(), -a.real());
}

/// Computes the discrete Fourier transform of R values in place.
template <int R, typename T>
void butterfly(std::complex<T>* v, const std::complex<T>* roots, int64_t root_step, bool inverse) {
  using Complex = std::complex<T>;
  if constexpr (R == 2) {
    Complex a = v[0], b = v[1];
    v[0] = a + b;
    v[1] = a - b;
  } else if constexpr (R == 4) {
    Complex even_sum = v[0] + v[2], even_difference = v[0] - v[2], odd_sum = v[1] + v[3];
    Complex odd_difference = quarter_turn(v[1] - v[3], inverse);
    v[0] = even_sum + odd_sum;
    v[1] = even_difference + odd_difference;
    v[2] = even_sum - odd_sum;
    v[3] = even_difference - odd_difference;
  } else {
    Complex sums[R];
    for (int k = 0; k < R; ++k) {
      Complex sum = v[0];
      for (int j = 1; j < R; ++j) {
        Complex w = roots[static_cast<int64_t>(j * k % R) * root_step];
        sum += times(v[j], inverse ? std::conj(w) : w);
      }
      sums[k] = sum;
    }
    std::copy_n(sums, R, v);
  }
}

/// Performs one Stockham pass over `n` values. Before the pass, `stride` interleaved transforms of length `length` remain to be done.
template <int R, typename T>
void pass(int64_t n, int64_t length, int64_t stride, const std::complex<T>* roots, bool inverse, const std::complex<T>* from,
          std::complex<T>* to) {
  using Complex = std::complex<T>;
  int64_t part = length / R;
  for (int64_t p = 0; p < part; ++p) {
    Complex twiddles[R];
    for (int k = 1; k < R; ++k) {
      Complex w = roots[p * k * stride];
      twiddles[k] = inverse ? std::conj(w) : w;
    }
    const Complex* source = from + stride * p;
    Complex* target = to + stride * R * p;
    for (int64_t q = 0; q < stride; ++q) {
      Complex v[R];
      for (int j = 0; j < R; ++j) v[j] = source[q + stride * part * j];
      butterfly<R>(v, roots, n / R, inverse);
      target[q] = v[0];
      for (int k = 1; k < R; ++k) target[q + stride * k] = times(v[k], twiddles[k]);
    }
  }
}

}  // namespace

template <typename T>
bool Fft<T>::factorize(int64_t n, Factors& factors) {
  auto take = [&](int radix) {
    while (n % radix == 0) {
      factors.radix[factors.count++] = radix;
      n /= radix;
    }
  };
  take(4);
  take(2);
  for (int radix = 3; radix <= kLargestPrime; radix += 2) take(radix);
  return n == 1;
}

template <typename T>
Fft<T>::Fft(int64_t length, bool inverse) : length_(length), inverse_(inverse) {
  if (length < 1)
    throw Error(ErrorCode::invalid_argument, "a Fourier transform of length " + std::to_string(length) + "; expected at least 1");
  if (length > kMaxLength)
    throw Error(ErrorCode::resource_exhausted, "a Fourier transform of length " + std::to_string(length) + "; the limit is 2^30");
  bluestein_ = !factorize(length, factors_);
  if (!bluestein_) return;
  factors_ = {};
  padded_ = 1;
  while (padded_ < 2 * length - 1) padded_ *= 2;
  factorize(padded_, factors_);
}

// The table for Bluestein's algorithm: the roots of unity of the padded length, the chirp exp(-pi i n^2 / length), and the transform of the
// chirp's conjugate.
template <typename T>
int64_t Fft<T>::table_size() const {
  return bluestein_ ? 2 * padded_ + length_ : length_;
}

template <typename T>
void Fft<T>::prepare(Complex* table, Complex* work) const {
  int64_t n = bluestein_ ? padded_ : length_;
  for (int64_t k = 0; k < n; ++k) table[k] = root_of_unity<T>(k, n);
  if (!bluestein_) return;
  Complex *chirp = table + padded_, *filter = chirp + length_;
  for (int64_t k = 0; k < length_; ++k) {
    auto square = static_cast<int64_t>(static_cast<unsigned __int128>(k) * static_cast<uint64_t>(k) % static_cast<uint64_t>(2 * length_));
    chirp[k] = root_of_unity<T>(square, 2 * length_);
  }
  std::fill_n(filter, padded_, Complex{});
  for (int64_t k = 0; k < length_; ++k) filter[k] = filter[(padded_ - k) % padded_] = std::conj(chirp[k]);
  passes(factors_, padded_, table, false, filter, work);
}

template <typename T>
void Fft<T>::passes(const Factors& factors, int64_t n, const Complex* roots, bool inverse, Complex* line, Complex* work) {
  Complex *from = line, *to = work;
  int64_t length = n, stride = 1;
  for (int i = 0; i < factors.count; ++i) {
    switch (factors.radix[i]) {
      case 2: pass<2>(n, length, stride, roots, inverse, from, to); break;
      case 3: pass<3>(n, length, stride, roots, inverse, from, to); break;
      case 4: pass<4>(n, length, stride, roots, inverse, from, to); break;
      case 5: pass<5>(n, length, stride, roots, inverse, from, to); break;
      case 7: pass<7>(n, length, stride, roots, inverse, from, to); break;
      case 11: pass<11>(n, length, stride, roots, inverse, from, to); break;
      default: pass<13>(n, length, stride, roots, inverse, from, to); break;
    }
    length /= factors.radix[i];
    stride *= factors.radix[i];
    std::swap(from, to);
  }
  if (from != line) std::copy_n(from, n, line);
}

template <typename T>
void Fft<T>::run(const Complex* table, Complex* line, Complex* work) const {
  if (!bluestein_) return passes(factors_, length_, table, inverse_, line, work);
  const Complex *chirp = table + padded_, *filter = chirp + length_;
  Complex* x = work;
  // The inverse is the conjugate of the forward transform of the conjugate.
  for (int64_t k = 0; k < length_; ++k) x[k] = times(inverse_ ? std::conj(line[k]) : line[k], chirp[k]);
  std::fill(x + length_, x + padded_, Complex{});
  passes(factors_, padded_, table, false, x, work + padded_);
  for (int64_t k = 0; k < padded_; ++k) x[k] = times(x[k], filter[k]);
  passes(factors_, padded_, table, true, x, work + padded_);
  auto scale = static_cast<T>(1.0 / static_cast<double>(padded_));
  for (int64_t k = 0; k < length_; ++k) {
    Complex y = times(x[k] * scale, chirp[k]);
    line[k] = inverse_ ? std::conj(y) : y;
  }
}

template class Fft<float>;
template class Fft<double>;

}  // namespace treadle::kernels
