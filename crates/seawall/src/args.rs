//! Arguments that several doors share.

use std::path::PathBuf;

/// The one way to name a configuration file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConfigArg {
    /// Configuration file [default: seawall.toml here, in ~/.config/seawall or in /etc/seawall]
    #[arg(short = 'c', long = "config", value_name = "FILE", env = "SEAWALL_CONFIG")]
    pub path: Option<PathBuf>,
}

/// Parses a header from a command line.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'NAME: VALUE'")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}
