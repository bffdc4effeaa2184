#include "tosaic/base/work.h"

namespace tosaic::work {
namespace {

thread_local std::uint64_t visits_so_far = 0;

}  // namespace

void add(std::uint64_t visits) { visits_so_far += visits; }

std::uint64_t total() { return visits_so_far; }

}  // namespace tosaic::work
