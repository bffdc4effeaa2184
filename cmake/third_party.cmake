# Finds the header-only libraries that layers use privately, in pip's build environment or on the system.
#
# The prefixes searched are the entries of CMAKE_PREFIX_PATH (in a pip build, site-packages), then those of
# the system. Wheels contain no CMake config, so the search is for files. Sources include the headers through
# a link in the build folder: pip's build environment has another name in each build, on which compile
# commands, and so ccache, must not depend.

function(tosaic_prefixes out)
  set(prefixes ${CMAKE_PREFIX_PATH})
  if(DEFINED ENV{CMAKE_PREFIX_PATH})
    cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST from_environment)
    list(APPEND prefixes ${from_environment})
  endif()
  list(APPEND prefixes ${CMAKE_SYSTEM_PREFIX_PATH})
  list(REMOVE_DUPLICATES prefixes)
  set(${out} "${prefixes}" PARENT_SCOPE)
endfunction()

function(tosaic_link_headers from name out)
  set(link "${PROJECT_BINARY_DIR}/third_party/${name}")
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/third_party")
  file(REMOVE_RECURSE "${link}")
  file(CREATE_LINK "${from}" "${link}" SYMBOLIC)
  set(${out} "${link}" PARENT_SCOPE)
endfunction()

# Finds flatc and headers of the same version in one prefix: generated code asserts that the versions match.
function(tosaic_find_flatbuffers out_include out_flatc)
  tosaic_prefixes(prefixes)
  set(seen "")
  foreach(prefix IN LISTS prefixes)
    set(base "${prefix}/include/flatbuffers/base.h")
    set(flatc "${prefix}/bin/flatc")
    if(NOT EXISTS "${base}" OR NOT EXISTS "${flatc}")
      continue()
    endif()
    file(READ "${base}" text)
    set(parts "")
    foreach(part MAJOR MINOR REVISION)
      string(REGEX MATCH "FLATBUFFERS_VERSION_${part} ([0-9]+)" _ "${text}")
      list(APPEND parts "${CMAKE_MATCH_1}")
    endforeach()
    list(JOIN parts "." headers_version)
    execute_process(COMMAND "${flatc}" --version OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status)
    if(status EQUAL 0 AND said MATCHES "flatc version ${headers_version}[\r\n]")
      message(STATUS "flatbuffers ${headers_version} in ${prefix}")
      tosaic_link_headers("${prefix}/include/flatbuffers" "flatbuffers" _)
      set(${out_include} "${PROJECT_BINARY_DIR}/third_party" PARENT_SCOPE)
      set(${out_flatc} "${flatc}" PARENT_SCOPE)
      return()
    endif()
    string(STRIP "${said}" said)
    string(APPEND seen "\n  ${prefix}: headers ${headers_version}, '${said}' (status ${status})")
  endforeach()
  message(FATAL_ERROR "flatbuffers: no prefix holds include/flatbuffers and a bin/flatc of the same version.${seen}\n"
    "Install libflatbuffers-dev and flatbuffers-compiler, or pip install tosa-tools and add its site-packages to "
    "CMAKE_PREFIX_PATH.")
endfunction()
