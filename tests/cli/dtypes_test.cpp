#include "imago.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

// Written out by hand on purpose: ids, names and sizes are part of file formats, and this list must not follow a slip
// in the library's own tables.
const Json kScalars = Json::parse(R"([
  {"id":0,"name":"float64","bits":64,"aliases":["fp64","f64"],"kind":"scalar"},
  {"id":1,"name":"float32","bits":32,"aliases":["fp32","f32"],"kind":"scalar"},
  {"id":2,"name":"float16","bits":16,"aliases":["fp16","f16"],"kind":"scalar"},
  {"id":3,"name":"bfloat16","bits":16,"aliases":["bf16"],"kind":"scalar"},
  {"id":4,"name":"fp8e4m3","bits":8,"aliases":["fp8"],"kind":"scalar"},
  {"id":5,"name":"fp8e5m2","bits":8,"aliases":[],"kind":"scalar"},
  {"id":6,"name":"int64","bits":64,"aliases":["i64"],"kind":"scalar"},
  {"id":7,"name":"int32","bits":32,"aliases":["i32"],"kind":"scalar"},
  {"id":8,"name":"int16","bits":16,"aliases":["i16"],"kind":"scalar"},
  {"id":9,"name":"int8","bits":8,"aliases":["i8"],"kind":"scalar"},
  {"id":10,"name":"uint64","bits":64,"aliases":["u64"],"kind":"scalar"},
  {"id":11,"name":"uint32","bits":32,"aliases":["u32"],"kind":"scalar"},
  {"id":12,"name":"uint16","bits":16,"aliases":["u16"],"kind":"scalar"},
  {"id":13,"name":"uint8","bits":8,"aliases":["u8"],"kind":"scalar"},
  {"id":14,"name":"int4","bits":4,"aliases":[],"kind":"scalar"},
  {"id":15,"name":"uint4","bits":4,"aliases":[],"kind":"scalar"},
  {"id":16,"name":"fp4","bits":4,"aliases":["f4"],"kind":"scalar"},
  {"id":17,"name":"int2","bits":2,"aliases":[],"kind":"scalar"},
  {"id":18,"name":"uint2","bits":2,"aliases":[],"kind":"scalar"},
  {"id":19,"name":"ternary","bits":2,"aliases":[],"kind":"scalar"},
  {"id":20,"name":"binary","bits":1,"aliases":[],"kind":"scalar"}])");

const Json kBlocks = Json::parse(R"([
  {"name":"q4_0","kind":"block","block":32,"block_bytes":18,"bits":4.5},
  {"name":"q4_1","kind":"block","block":32,"block_bytes":20,"bits":5.0},
  {"name":"q5_0","kind":"block","block":32,"block_bytes":22,"bits":5.5},
  {"name":"q5_1","kind":"block","block":32,"block_bytes":24,"bits":6.0},
  {"name":"q8_0","kind":"block","block":32,"block_bytes":34,"bits":8.5},
  {"name":"q2_k","kind":"block","block":256,"block_bytes":84,"bits":2.625},
  {"name":"q3_k","kind":"block","block":256,"block_bytes":110,"bits":3.4375},
  {"name":"q4_k","kind":"block","block":256,"block_bytes":144,"bits":4.5},
  {"name":"q5_k","kind":"block","block":256,"block_bytes":176,"bits":5.5},
  {"name":"q6_k","kind":"block","block":256,"block_bytes":210,"bits":6.5625},
  {"name":"iq4_nl","kind":"block","block":32,"block_bytes":18,"bits":4.5},
  {"name":"iq4_xs","kind":"block","block":256,"block_bytes":136,"bits":4.25},
  {"name":"tq1_0","kind":"block","block":256,"block_bytes":54,"bits":1.6875},
  {"name":"tq2_0","kind":"block","block":256,"block_bytes":66,"bits":2.0625},
  {"name":"mxfp4","kind":"block","block":32,"block_bytes":17,"bits":4.25},
  {"name":"nvfp4","kind":"block","block":64,"block_bytes":36,"bits":4.5},
  {"name":"iq1_s","kind":"block","block":256,"block_bytes":50,"bits":1.5625},
  {"name":"iq1_m","kind":"block","block":256,"block_bytes":56,"bits":1.75},
  {"name":"iq2_xxs","kind":"block","block":256,"block_bytes":66,"bits":2.0625},
  {"name":"iq2_xs","kind":"block","block":256,"block_bytes":74,"bits":2.3125},
  {"name":"iq2_s","kind":"block","block":256,"block_bytes":82,"bits":2.5625},
  {"name":"iq3_xxs","kind":"block","block":256,"block_bytes":98,"bits":3.0625},
  {"name":"iq3_s","kind":"block","block":256,"block_bytes":110,"bits":3.4375},
  {"name":"q1_0","kind":"block","block":128,"block_bytes":18,"bits":1.125},
  {"name":"q2_0","kind":"block","block":64,"block_bytes":18,"bits":2.25}])");

TEST(DTypes, JsonIsAsPromised) {
  const Json object = expect_json(imago_run({"dtypes", "--json"}));
  Json expected = kScalars;
  expected.insert(expected.end(), kBlocks.begin(), kBlocks.end());
  EXPECT_EQ(object.at("types"), expected) << Json::diff(object.at("types"), expected).dump(2);
  EXPECT_EQ(object.at("file_types"),
            Json::parse(R"([{"name":"entity_q4_0","kind":"block","block":32,"block_bytes":20,"bits":5.0}])"));
}

TEST(DTypes, TheTableNamesEveryTypeOncePerLine) {
  const ProcessResult result = imago_run({"dtypes"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const Json& list : {kScalars, kBlocks}) {
    for (const Json& type : list) {
      const std::string name = type.at("name");
      EXPECT_NE(result.out.find(name + " "), std::string::npos) << name;
    }
  }
  EXPECT_EQ(result.out.find(" \n"), std::string::npos) << "spaces at the end of a line";
}

}  // namespace
}  // namespace imago::testing
