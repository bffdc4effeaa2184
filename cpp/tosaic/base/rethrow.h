// rethrow: what to throw in place of an exception that a function throws.
#pragma once

#include <functional>
#include <stdexcept>

#include "tosaic/base/error.h"

namespace tosaic {

// Runs `body`. If it throws an error, calls rethrow(error) with the error as an object of its class, so that
// `rethrow` can throw another error of the same class.
template <class Rethrow>
void with_errors_rethrown(const std::function<void()>& body, const Rethrow& rethrow) {
  try {
    body();
  } catch (const InvalidGraph& error) {
    rethrow(error);
  } catch (const UnsupportedOp& error) {
    rethrow(error);
  } catch (const SpecViolation& error) {
    rethrow(error);
  } catch (const QuantMismatch& error) {
    rethrow(error);
  } catch (const LayoutMismatch& error) {
    rethrow(error);
  } catch (const InternalError& error) {
    rethrow(error);
  }
}

// Runs `body`, which is the user's code. If it throws a logic_error or runtime_error that is not an error of
// tosaic, calls refuse(exception). Other exceptions pass, such as std::bad_alloc.
template <class Refuse>
void with_exceptions_refused(const std::function<void()>& body, const Refuse& refuse) {
  try {
    body();
  } catch (const Error&) {  // a std::runtime_error too
    throw;
  } catch (const std::logic_error& error) {
    refuse(error);
  } catch (const std::runtime_error& error) {
    refuse(error);
  }
}

}  // namespace tosaic
