option(BUILD_SHARED_LIBS "Build libropekit as a shared library" ON)
option(ROPEKIT_OPENMP "Run the CPU backend on OpenMP threads" ON)
option(ROPEKIT_BUILD_TESTS "Build the test suite" ${PROJECT_IS_TOP_LEVEL})
option(ROPEKIT_ORACLE "Build what compares with MPFR: the oracle and its tests, which the tool needs" ON)
include(CMakeDependentOption)
cmake_dependent_option(ROPEKIT_BUILD_TOOL "Build the ropekit command-line tool (needs cJSON and the oracle)"
    ${PROJECT_IS_TOP_LEVEL} ROPEKIT_ORACLE OFF)
option(ROPEKIT_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(ROPEKIT_BUILD_FUZZERS "Build the libFuzzer targets (needs clang)" OFF)
option(ROPEKIT_CRITERION "CTest runs the suite through Criterion, else through the plain runner" ON)
option(ROPEKIT_HIP_EMULATION
    "Tests: run the suite on the HIP backend with an emulated device (needs a C++ compiler)" ON)
option(ROPEKIT_EMULATE_AMD_MATRICES
    "Tests: attention on the emulated device by AMD's matrix instructions too, not by CUDA's alone" OFF)
option(ROPEKIT_EMULATE_AMX
    "Tests: attention's AMX kernel on any x86-64 processor, by tile products in C" OFF)
option(ROPEKIT_WERROR "Treat warnings as errors" OFF)
set(ROPEKIT_SANITIZE "" CACHE STRING "Sanitizers for everything built, as in address,undefined")

get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(PROJECT_IS_TOP_LEVEL AND NOT multi_config AND NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
