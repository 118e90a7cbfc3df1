if(ROPEKIT_HIP STREQUAL "DEBIAN")
    set(ROPEKIT_HIP_CLANG 19 CACHE STRING "Version of Debian's clang for ROPEKIT_HIP=DEBIAN")
    set(root ${CMAKE_CURRENT_BINARY_DIR}/rocm)
    execute_process(
        COMMAND ${PROJECT_SOURCE_DIR}/scripts/debian_rocm ${root} ${ROPEKIT_HIP_CLANG}
        RESULT_VARIABLE result ERROR_VARIABLE text)
    if(result)
        message(FATAL_ERROR "ropekit: ROPEKIT_HIP is DEBIAN: ${text}")
    endif()
    set(CMAKE_HIP_COMPILER clang++-${ROPEKIT_HIP_CLANG})
    set(CMAKE_HIP_COMPILER_ROCM_ROOT ${root})
    # The ELF would be of version 5 and the device library of version 4.
    set(debian_flags "--rocm-path=${root} -mcode-object-version=5")
    if(ROPEKIT_HIP_CLANG GREATER 19)
        string(APPEND debian_flags " -include ${root}/include/hip_5_2.h")
    endif()
    set(CMAKE_HIP_FLAGS "${debian_flags} $CACHE{CMAKE_HIP_FLAGS}")
endif()

set(given_architectures ${CMAKE_HIP_ARCHITECTURES})
if(NOT given_architectures)
    set(CMAKE_HIP_ARCHITECTURES gfx942)
endif()
enable_language(HIP)
if(debian_flags) # the first time HIPFLAGS has come into the cache only now
    set(CMAKE_HIP_FLAGS "${debian_flags} $CACHE{CMAKE_HIP_FLAGS}")
endif()
ropekit_refuse_fast_math(HIP)
# ROCm's hip-config.cmake reads CMAKE_CXX_COMPILER_ID, in 6.0 unquoted (ROCm/clr issue 48), and looks
# for other packages of ROCm.
enable_language(CXX)
ropekit_refuse_fast_math(CXX)
list(APPEND CMAKE_PREFIX_PATH ${CMAKE_HIP_COMPILER_ROCM_ROOT})
find_package(hip CONFIG REQUIRED GLOBAL HINTS ${CMAKE_HIP_COMPILER_ROCM_ROOT})
set_property(GLOBAL APPEND PROPERTY ROPEKIT_TOOLKIT
    "HIP ${hip_VERSION}, ${CMAKE_HIP_COMPILER_ID} ${CMAKE_HIP_COMPILER_VERSION}")

# CDNA 2, 3 and 4, RDNA 2, 3 and 4, as far as compiler and device library know them.
if(NOT given_architectures)
    set(CMAKE_HIP_ARCHITECTURES "")
    separate_arguments(flags NATIVE_COMMAND "${CMAKE_HIP_FLAGS}")
    foreach(architecture IN ITEMS gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1201)
        execute_process(
            COMMAND ${CMAKE_HIP_COMPILER} ${flags} --offload-arch=${architecture}
                --cuda-device-only -x hip -c /dev/null -o /dev/null
            RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE text)
        if(result EQUAL 0)
            list(APPEND CMAKE_HIP_ARCHITECTURES ${architecture})
        endif()
    endforeach()
    if(NOT CMAKE_HIP_ARCHITECTURES)
        message(FATAL_ERROR "ropekit: ${CMAKE_HIP_COMPILER} compiles for no AMD processor that was "
            "tried; name yours in CMAKE_HIP_ARCHITECTURES. Of the last it said:\n${text}")
    endif()
endif()
message(STATUS
    "ropekit: HIP backend for ${CMAKE_HIP_ARCHITECTURES}; not yet run on AMD hardware")

set_source_files_properties(${ropekit_gpu_kernels} PROPERTIES LANGUAGE HIP)
ropekit_gpu_objects(ropekit_hip_kernels)
target_compile_definitions(ropekit_hip_kernels PRIVATE ROPEKIT_HIP)
set_target_properties(ropekit_hip_kernels PROPERTIES
    HIP_STANDARD 17 HIP_STANDARD_REQUIRED ON
    HIP_VISIBILITY_PRESET hidden)
# Hoisted out of loops, constants and addresses would fill the scalar registers until they spill.
# Loops are unrolled where the source says so: clang 22 unrolls those over axes too, which takes
# gpu_generic<4> from 82 to 104 vector registers of gfx942. Numbers are packed two by two where that
# saves much; where it saves little, moving them together costs registers.
target_compile_options(ropekit_hip_kernels PRIVATE ${ropekit_compile_flags} -fno-exceptions
    "SHELL:-Xarch_device -mllvm=-disable-machine-licm"
    "SHELL:-Xarch_device -fno-unroll-loops"
    "SHELL:-Xarch_device -mllvm=-slp-threshold=16")
ropekit_gpu_plugin(hip ropekit_hip_kernels)
target_compile_definitions(ropekit_hip PRIVATE ROPEKIT_HIP)
target_link_libraries(ropekit_hip PRIVATE hip::host)
