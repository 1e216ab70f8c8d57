class Rabbitdelay < Formula
  desc "Delayed messages and scheduled tasks on a stock RabbitMQ"
  homepage "https://github.com/rabbitdelay/rabbitdelay"
  version "@version@"
  license "Apache-2.0"

  on_macos do
    on_arm do
      url "https://github.com/rabbitdelay/rabbitdelay/releases/download/v@version@/rabbitdelay_@version@_darwin_arm64.tar.gz"
      sha256 "@darwin_arm64@"
    end
    on_intel do
      url "https://github.com/rabbitdelay/rabbitdelay/releases/download/v@version@/rabbitdelay_@version@_darwin_amd64.tar.gz"
      sha256 "@darwin_amd64@"
    end
  end
  on_linux do
    on_arm do
      url "https://github.com/rabbitdelay/rabbitdelay/releases/download/v@version@/rabbitdelay_@version@_linux_arm64.tar.gz"
      sha256 "@linux_arm64@"
    end
    on_intel do
      url "https://github.com/rabbitdelay/rabbitdelay/releases/download/v@version@/rabbitdelay_@version@_linux_amd64.tar.gz"
      sha256 "@linux_amd64@"
    end
  end

  def install
    bin.install "rabbitdelay"
    bash_completion.install "completions/rabbitdelay.bash" => "rabbitdelay"
    zsh_completion.install "completions/rabbitdelay.zsh" => "_rabbitdelay"
    fish_completion.install "completions/rabbitdelay.fish"
  end

  test do
    assert_match "v#{version}", shell_output("#{bin}/rabbitdelay version")
  end
end
