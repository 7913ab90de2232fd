//! Writes `mooncake-proto/src/generated/` anew: run it after editing a `.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = mooncake_proto_codegen::proto_crate();
    let out = root.join("src/generated");
    mooncake_proto_codegen::generate(&root, &out)?;
    println!("wrote {}", out.display());
    Ok(())
}
