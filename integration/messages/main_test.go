package messages_test

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m, tiers)) }

// Before a push run the cases in which messages were lost or handled twice most often while this was written.
var tiers = tier.Plan{Test: []string{
	"TestSendsSurviveLostConnections",
	"TestBatchSurvivesALostConnection",
	"TestCutBeforeTheConfirm",
	"TestCutBeforeTheAcknowledgement",
	"TestMissingDelayQueueIsDeclaredAgain",
	"TestDeletedDestinationIsDeclaredAgain",
	"TestDrain",
	"TestRetriesThenDeadLetter",
	"TestRejectAndRetryIn",
	"TestConsumeRefusesBadOptions",
	"TestFirstUseByManyClientsAtOneInstant/" + tier.Newest,
	"TestRequeueLeavesTheRest/" + tier.Newest,
	"TestDiscardKeepsEverything/" + tier.Newest,
	"TestUnreadableMessages/" + tier.Newest,
}}
